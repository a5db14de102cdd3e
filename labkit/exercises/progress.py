"""The table of what a reader has solved and predicted."""

from labkit.classroom import kept
from labkit.display.cards import Table
from labkit.exercises import registry


def progress_table() -> Table:
    """List all lessons, their exercises, which of them are solved, and how many predictions were right."""
    lessons, solved, predicted = registry.lessons(), kept.load("solved"), kept.load("predictions")
    count = max(len(lesson.exercises) for lesson in lessons)
    rows = []
    for lesson in lessons:
        done = [one.id in solved for one in lesson.exercises]
        cells = ["✓ solved" if one else "open" for one in done] + ["–"] * (count - len(done))
        found = [one.get("verdict") for id, one in predicted.items() if id[:2] == lesson.number]
        guessed = f"{found.count('right')} of {len(found)}" if found else "–"
        rows.append((f"{lesson.number} {lesson.title}", *cells, f"{sum(done)} of {len(done)}", guessed))
    return Table(("lesson", *map(str, range(1, count + 1)), "solved", "predicted"), rows)
