"""What a teacher uses: a board of the class, a table of results, and assignments for nbgrader.

    $ python -m course.classroom board /mnt/class

Learners share their progress with `join`, and `show` prints what is shared. Of labkit this package uses
display, errors, files, settings, storage and the doctor, and the one file of `course.exercises`,
``HOME/exercises.json``.
"""

from course.classroom.page import board
from course.classroom.sharing import ask, join, leave, show

__all__ = ["ask", "board", "join", "leave", "show"]
