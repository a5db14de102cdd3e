"""Draw the lessons' pictures: ``lessons/images/*.svg``, in one style for light and dark backgrounds.

    python tools/pictures.py          draw all
    python tools/pictures.py --check  change nothing; fail where a file is not what would be drawn

A picture is one of the functions below. Sizes are in pixels; a text that is wider than its box is an error.
Each picture brings its own background, because a notebook's theme and the browser's colour scheme need not
agree.
"""

import inspect
import sys
from collections.abc import Callable
from pathlib import Path
from xml.sax.saxutils import escape

FOLDER = Path(__file__).resolve().parent.parent / "lessons" / "images"
_STYLE = """\
.bg{fill:#fff} .node{fill:#f5f7f9;stroke:#9aa7b4} .process{fill:#e8f1fb;stroke:#2a6fb0}
.data{fill:#e9f6ec;stroke:#3c8a50} .store{fill:#fdf3dc;stroke:#b58316} .stop{fill:#fbe9e7;stroke:#c0564a}
.node,.process,.data,.store,.stop{stroke-width:1.3} .line{stroke:#56677a;stroke-width:1.6;fill:none}
.dash{stroke-dasharray:5 4} .tip{fill:#56677a} text{font:13px sans-serif;fill:#16222e}
.b{font-weight:600} .n{font-size:12px;fill:#4a5b6c} .c{font-family:monospace;font-size:12px}
@media (prefers-color-scheme:dark){.bg{fill:#161b22} .node{fill:#1d242d;stroke:#66758a}
.process{fill:#1b2f45;stroke:#6aa9e0} .data{fill:#1b3324;stroke:#6cc186} .store{fill:#3a2f16;stroke:#dcb158}
.stop{fill:#3d2320;stroke:#e58a7e} .line{stroke:#a9b8c7} .tip{fill:#a9b8c7} text{fill:#e6edf3}
.n{fill:#b4c2d0}}"""
_WIDTH_OF_A_LETTER = {"": 6.9, "b": 7.4, "n": 6.4, "c": 7.3}  # pixels, at most


class Drawing:
    """An SVG under construction; x and y are a box's upper left corner."""

    def __init__(self, width: int, height: int, title: str, description: str) -> None:
        self._parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
            f'viewBox="0 0 {width} {height}" role="img" aria-labelledby="t d">',
            f'<title id="t">{escape(title)}</title>\n<desc id="d">{escape(description)}</desc>',
            f"<style>\n{_STYLE}\n</style>",
            '<defs><marker id="a" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" '
            'orient="auto-start-reverse"><path class="tip" d="M0 0 8 4 0 8z"/></marker></defs>',
            f'<rect class="bg" width="{width}" height="{height}" rx="8"/>',
        ]

    def box(self, x: int, y: int, width: int, height: int, *lines: str, kind: str = "process") -> None:
        """A box with lines of text in its middle; the first is bold if there are more."""
        self._parts.append(f'<rect class="{kind}" x="{x}" y="{y}" width="{width}" height="{height}" rx="5"/>')
        top = y + height / 2 + 5 - 8.5 * (len(lines) - 1)
        for number, line in enumerate(lines):
            style = "b" if len(lines) > 1 and number == 0 else "n" if number else ""
            self.text(x + width / 2, top + 17 * number, line, style=style, anchor="middle", room=width - 6)

    def frame(self, x: int, y: int, width: int, height: int, label: str) -> None:
        """A box around others, with its label in the upper left corner."""
        self.box(x, y, width, height, kind="node")
        self.text(x + 12, y + 21, label, style="b", room=width - 24)

    def text(
        self, x: float, y: float, text: str, *, style: str = "", anchor: str = "start", room: float = 2000
    ) -> None:
        """A line of text; `style` is "b" (bold), "n" (a note), "c" (code) or plain."""
        if len(text) * _WIDTH_OF_A_LETTER[style] > room:
            raise ValueError(f"{text!r} needs more than {room:g} pixels")
        named = f' class="{style}"' if style else ""
        self._parts.append(f'<text{named} x="{x:g}" y="{y:g}" text-anchor="{anchor}">{escape(text)}</text>')

    def arrow(self, *points: tuple[int, int], dashed: bool = False, both: bool = False) -> None:
        """A line through `points` with a tip at its end, or at both."""
        path = " ".join(f"{x} {y}" for x, y in points)
        start = ' marker-start="url(#a)"' if both else ""
        kind = "line dash" if dashed else "line"
        self._parts.append(f'<path class="{kind}" d="M{path}"{start} marker-end="url(#a)"/>')

    def line(self, *points: tuple[int, int], dashed: bool = False) -> None:
        """A line through `points`."""
        path = " ".join(f"{x} {y}" for x, y in points)
        self._parts.append(f'<path class="{"line dash" if dashed else "line"}" d="M{path}"/>')

    def __str__(self) -> str:
        return "\n".join([*self._parts, "</svg>\n"])


PICTURES: dict[str, Callable[[], Drawing]] = {}


def picture(width: int, height: int) -> Callable:
    """Make the decorated function, which draws into a `Drawing`, the picture of its name.

    Its docstring is what a screen reader says: the title, and the description.
    """

    def add(draw: Callable[[Drawing], None]) -> Callable[[Drawing], None]:
        def drawn() -> Drawing:
            title, _, description = inspect.getdoc(draw).partition("\n\n")
            drawing = Drawing(width, height, title.rstrip("."), " ".join(description.split()))
            draw(drawing)
            return drawing

        PICTURES[draw.__name__] = drawn
        return draw

    return add


@picture(760, 330)
def nodes(d: Drawing) -> None:
    """The processes of a Ray cluster.

    The notebook's kernel is the driver. It asks the GCS, on the head node, what there is, and a raylet
    for a worker process; then it sends the task straight to that worker. Each node has a raylet, worker
    processes and an object store in shared memory. Only the head has the GCS.
    """
    d.box(20, 130, 120, 70, "driver", "your notebook")
    d.frame(220, 20, 250, 290, "node: head")
    d.box(236, 56, 220, 48, "GCS", "knows all nodes and actors")
    d.box(236, 120, 220, 48, "raylet", "starts workers, counts CPUs")
    d.box(236, 184, 106, 48, "worker", "runs tasks")
    d.box(350, 184, 106, 48, "worker", "runs tasks")
    d.box(236, 248, 220, 46, "object store", "shared memory", kind="data")
    d.frame(500, 20, 240, 290, "node: node-2")
    d.box(516, 120, 208, 48, "raylet")
    d.box(516, 184, 98, 48, "worker", "runs tasks")
    d.box(626, 184, 98, 48, "worker", "runs tasks")
    d.box(516, 248, 208, 46, "object store", "shared memory", kind="data")
    d.arrow((140, 142), (180, 142), (180, 80), (236, 80))
    d.arrow((140, 158), (236, 146))
    d.arrow((140, 182), (236, 208))
    for number, y, question in (
        (1, 74, "what is there?"),
        (2, 142, "which worker is free?"),
        (3, 192, "the task"),
    ):
        d.text(208, y, str(number), style="b")
        d.text(20, 212 + 20 * number, f"{number}  {question}", style="n", room=190)
    d.arrow((516, 140), (486, 140), (486, 80), (456, 80), dashed=True)
    d.text(516, 84, "node-2's raylet reports to", style="n", room=220)
    d.text(516, 100, "the GCS: alive, 2 CPUs free", style="n", room=220)
    d.arrow((456, 271), (516, 271), both=True)


@picture(760, 250)
def buckets(d: Drawing) -> None:
    """Gradients are exchanged in buckets while backward still computes.

    Time goes from left to right. Backward computes the gradients of the last layers first. As soon as their
    bucket is full, its all-reduce starts, while backward goes on with the layers before. Only the all-reduce
    of the last bucket has to be waited for.
    """
    d.text(20, 30, "one rank, time from left to right", style="n")
    d.text(20, 78, "compute", style="b")
    d.text(20, 148, "network", style="b")
    d.box(100, 52, 130, 44, "forward")
    for place, layers in enumerate(("layers 9 to 7", "layers 6 to 4", "layers 3 to 1")):
        d.box(240 + 125 * place, 52, 120, 44, "backward", layers)
    d.box(665, 52, 75, 44, "step")
    d.box(365, 122, 105, 44, "all-reduce", "bucket 1", kind="data")
    d.box(490, 122, 105, 44, "all-reduce", "bucket 2", kind="data")
    d.box(615, 122, 45, 44, "3", kind="data")
    d.arrow((345, 96), (375, 122))
    d.arrow((470, 96), (500, 122))
    d.arrow((600, 96), (625, 122))
    d.arrow((660, 144), (700, 144), (700, 96))
    d.text(365, 196, "these two are exchanged while backward computes", style="n", room=380)
    d.text(365, 216, "the step has to wait for the last one only", style="n", room=380)


@picture(760, 476)
def ring(d: Drawing) -> None:
    """A ring all-reduce with three ranks.

    Each rank has an array of three pieces, a, b and c. In each round every rank sends one piece to its right
    neighbour, which adds it to its own: first rank 0 sends a, rank 1 sends b, and rank 2 sends c around to
    rank 0. After two rounds rank 0 has the complete b, rank 1 the complete c, and rank 2 the complete a.
    In two more rounds the complete pieces go around and replace what a rank had, so that all have all three.
    """
    pieces = ("a", "b", "c")
    held = [{piece: str(rank) for piece in pieces} for rank in range(3)]
    for turn in range(5):
        top = 46 + 88 * turn
        d.text(20, top + 27, f"after round {turn}" if turn else "at first", style="b")
        if turn < 4:
            d.text(20, top + 69, "send and add" if turn < 2 else "send and replace", style="n", room=120)
        for rank in range(3):
            left = 150 + 205 * rank
            if turn == 0:
                d.text(left, 28, f"rank {rank}", style="n")
            for place, piece in enumerate(pieces):
                kind = "data" if len(held[rank][piece]) == 3 else "process"
                d.box(left + 60 * place, top, 56, 42, piece + held[rank][piece], kind=kind)
        if turn == 4:
            continue
        moved = {rank: pieces[(rank - turn) % 3] for rank in range(3)}
        for rank, piece in moved.items():
            x, to = 178 + 205 * rank + 60 * pieces.index(piece), (rank + 1) % 3
            end = 178 + 205 * to + 60 * pieces.index(piece)
            d.arrow((x, top + 42), (x, top + 52 + 8 * rank), (end, top + 52 + 8 * rank), (end, top + 88))
        sent = {(rank + 1) % 3: (piece, held[rank][piece]) for rank, piece in moved.items()}
        for rank, (piece, whose) in sent.items():
            held[rank][piece] = whose if turn >= 2 else "".join(sorted(held[rank][piece] + whose))


@picture(760, 300)
def task_actor(d: Drawing) -> None:
    """A task and an actor.

    A task: square.remote(7) returns an ObjectRef at once; a worker process runs the function and keeps
    the result; ray.get waits for it. An actor: Counter.remote() starts a process of its own that keeps
    its state; calls of its methods run in it one after the other.
    """
    d.frame(20, 20, 200, 260, "driver")
    d.frame(330, 20, 410, 120, "a task: any free worker process")
    d.frame(330, 160, 410, 120, "an actor: a process of its own")
    d.text(34, 74, "ref = square.remote(7)", style="c", room=182)
    d.text(34, 118, "ray.get(ref)", style="c", room=182)
    d.text(34, 204, "c = Counter.remote()", style="c", room=182)
    d.text(34, 228, "c.add.remote()", style="c", room=182)
    d.text(34, 252, "c.add.remote()", style="c", room=182)
    d.box(350, 56, 160, 66, "worker", "runs square(7)")
    d.box(580, 56, 140, 66, "small result", "49", kind="data")
    d.arrow((214, 70), (350, 70))
    d.text(226, 62, "square, 7", style="n", room=90)
    d.arrow((510, 89), (580, 89))
    d.text(523, 81, "result", style="n", room=60)
    d.arrow((650, 122), (650, 132), (260, 132), (260, 114), (130, 114))
    d.text(228, 108, "waits, then 49", style="n", room=100)
    d.box(350, 196, 160, 66, "Counter", "n = 2, stays here")
    d.arrow((200, 200), (350, 208))
    d.arrow((200, 224), (350, 228))
    d.arrow((200, 248), (350, 248))
    d.text(236, 196, "new process", style="n", room=90)
    d.text(524, 216, "calls run one after the other", style="n", room=210)
    d.text(524, 234, "killed and restarted: n = 0 again", style="n", room=216)


@picture(760, 270)
def blocks(d: Drawing) -> None:
    """A dataset as a stream of blocks.

    A list of names is cut into blocks. A task processes one block: it fetches each image
    and decodes it. Its result is a block in the object store, where only a limited number may wait. When the
    consumer is slow, no further task starts: that is back-pressure.
    """
    d.text(20, 30, "names", style="b")
    for row, label in enumerate(("block 1", "block 2", "block 3", "block 4")):
        d.box(20, 44 + 44 * row, 110, 34, label, kind="data")
    d.text(200, 30, "tasks, one block each", style="b")
    d.box(200, 44, 200, 56, "task", "fetch each image")
    d.box(200, 112, 200, 56, "task", "fetch each image")
    d.box(200, 180, 200, 40, "not started", kind="stop")
    d.text(464, 30, "object store", style="b")
    d.frame(450, 44, 140, 124, "limited memory")
    d.box(464, 78, 112, 34, "images", kind="data")
    d.box(464, 122, 112, 34, "images", kind="data")
    d.text(652, 30, "consumer", style="b")
    d.box(640, 66, 100, 80, "training", "one batch", "at a time")
    d.arrow((130, 61), (200, 66))
    d.arrow((130, 105), (200, 134))
    d.arrow((400, 72), (464, 92))
    d.arrow((400, 140), (464, 139))
    d.arrow((590, 106), (640, 106))
    d.arrow((520, 168), (520, 200), (400, 200), dashed=True)
    d.text(412, 218, "back-pressure: the store is full,", style="n", room=230)
    d.text(412, 234, "so no further task starts", style="n", room=230)
    d.text(20, 250, "Blocks of the whole dataset never have to be in memory together.", style="n", room=480)


@picture(760, 330)
def all_reduce(d: Drawing) -> None:
    """One step of data-parallel training.

    Two workers have the same weights. Each computes the gradients of its own 64 images. All-reduce
    gives both the mean of the gradients. Both make the same update, so the weights stay the same. The
    global batch is 128.
    """
    for rank, left in ((0, 40), (1, 480)):
        d.text(left + 120, 30, f"rank {rank}", style="b", anchor="middle")
        d.box(left, 44, 240, 40, f"64 images of shard {rank}", kind="data")
        d.box(left, 110, 240, 52, "forward and backward", "the same weights")
        d.box(left, 190, 240, 40, f"its own gradients, g{rank}", kind="data")
        d.box(left, 262, 240, 52, "optimizer.step()", "the same weights again")
        d.arrow((left + 120, 84), (left + 120, 110))
        d.arrow((left + 120, 162), (left + 120, 190))
        d.arrow((left + 120, 230), (left + 120, 262))
    d.box(306, 184, 148, 52, "all-reduce", "(g0 + g1) / 2", kind="store")
    d.arrow((280, 210), (306, 210), both=True)
    d.arrow((454, 210), (480, 210), both=True)
    d.text(380, 62, "global batch: 128", style="b", anchor="middle")
    d.text(380, 268, "Both apply the same", style="n", anchor="middle")
    d.text(380, 284, "mean gradient.", style="n", anchor="middle")


@picture(760, 270)
def timeline(d: Drawing) -> None:
    """Where a run's time goes.

    A controller starts two workers. In each epoch they wait for data, make their steps, and meet at
    report, which is a barrier. Then rank 0 uploads the checkpoint to the store, and rank 1, which begins the
    next epoch, waits for it in its first step.
    """
    for top, name in ((48, "controller"), (108, "rank 0"), (168, "rank 1")):
        d.text(20, top + 24, name, style="b", room=90)
    d.box(110, 48, 150, 38, "starts workers")
    d.box(270, 48, 470, 38, "collects reports, restarts after a failure")
    for left in (270, 506):
        d.box(left, 108, 44, 38, "data", kind="store")
        d.box(left + 46, 108, 100, 38, "steps, test")
        d.box(left + 150, 108, 82, 38, "upload", kind="data")
        d.box(left + 46, 168, 100, 38, "steps, test")
        d.line((left + 148, 100), (left + 148, 214), dashed=True)
        d.text(left + 148, 230, "report", style="n", anchor="middle")
    d.box(270, 168, 44, 38, "data", kind="store")
    d.box(420, 168, 44, 38, "data", kind="store")
    d.box(466, 168, 84, 38, "waits", kind="stop")
    d.box(110, 108, 150, 38, "imports, connects")
    d.box(110, 168, 150, 38, "imports, connects")
    d.text(110, 34, "start", style="b")
    d.text(270, 34, "epoch 0", style="b")
    d.text(506, 34, "epoch 1", style="b")
    d.arrow((110, 252), (740, 252))
    d.text(20, 256, "time", style="n")


@picture(760, 236)
def hang(d: Drawing) -> None:
    """A run that hangs.

    Two ranks make the steps of epochs 0 and 1. While rank 0 tests the model, rank 1 waits for it in the next
    epoch. Then rank 0 leaves the loop, because its model is good enough. Rank 1 waits in the backward of
    epoch 2 for gradients that never come, until the process group gives up and the run fails.
    """
    for top, name in ((48, "rank 0"), (108, "rank 1")):
        d.text(20, top + 24, name, style="b", room=90)
    for number, left in ((0, 110), (1, 270)):
        d.text(left, 34, f"epoch {number}", style="b")
        d.box(left, 48, 84, 38, "steps")
        d.box(left + 86, 48, 64, 38, "test", kind="data")
        d.box(left, 108, 84, 38, "steps")
    d.box(196, 108, 64, 38, "waits", kind="stop")
    d.text(430, 34, "epoch 2", style="b")
    d.line((422, 40), (422, 92), dashed=True)
    d.text(430, 72, "rank 0 has returned", style="n")
    d.box(356, 108, 314, 38, "waits in backward()", kind="stop")
    d.line((671, 40), (671, 154), dashed=True)
    d.text(671, 172, "timeout", style="n", anchor="middle")
    d.arrow((110, 200), (740, 200))
    d.text(20, 204, "time", style="n")


@picture(760, 306)
def life_of_metrics(d: Drawing) -> None:
    """The life of a checkpoint's metrics.

    The loop reports metrics and a checkpoint, and trains on. A thread uploads the checkpoint. From then on it
    is committed, or pending if a validation was asked for. The validator runs when its turn has come. Then
    the checkpoint is validated, with the metrics of both, or its validation failed or timed out, with the
    metrics of the loop alone.
    """
    for top, row in (
        (54, "training loop"),
        (104, "upload thread"),
        (154, "validation task"),
        (214, "status"),
    ):
        d.text(16, top, row, style="b", room=118)
    d.text(16, 264, "metrics", style="b")
    d.text(136, 20, "report(metrics, checkpoint=…, validation=True)", style="c")
    for left, width, epoch in ((136, 90, 0), (230, 150, 1), (384, 150, 2)):
        d.box(left, 34, width, 30, f"epoch {epoch}")
    d.arrow((228, 26), (228, 84))
    d.box(228, 84, 72, 30, "upload", kind="store")
    d.line((300, 114), (300, 194), dashed=True)
    d.arrow((300, 149), (366, 149), dashed=True)
    d.text(304, 143, "its turn?", style="n")
    d.box(366, 134, 168, 30, "validator(checkpoint)", kind="data")
    d.line((534, 164), (534, 194), dashed=True)
    d.box(300, 194, 234, 30, "PENDING_VALIDATION", kind="store")
    d.text(300, 240, "without validation=: COMMITTED", style="n")
    d.box(300, 250, 234, 30, "loss 0.31: what the loop said", kind="node")
    ends = (("VALIDATED", "metrics of both", "data"), ("VALIDATION_FAILED", "those of the loop", "stop"))
    ends += (("VALIDATION_TIMEOUT", "those of the loop", "stop"),)
    for top, (status, metrics, kind) in zip((158, 209, 260), ends, strict=True):
        d.box(572, top - 24, 172, 44, status, metrics, kind=kind)
        d.arrow((534, 209), (552, 209), (552, top - 2), (572, top - 2))
    d.arrow((136, 296), (740, 296))
    d.text(16, 300, "time", style="n")


@picture(760, 190)
def failure(d: Drawing) -> None:
    """What a failure costs.

    A run saves after every 10 steps. After step 17 a rank dies. The second attempt loads the checkpoint and
    continues with step 11, so steps 11 to 17 are trained twice; between the attempts nothing is trained.
    """
    d.text(20, 52, "first attempt", style="b", room=110)
    d.text(20, 122, "second attempt", style="b", room=110)
    d.box(130, 28, 120, 38, "steps 1 to 10")
    d.box(266, 28, 84, 38, "11 to 17", kind="stop")
    d.text(360, 52, "a rank dies", style="b", room=90)
    d.text(258, 90, "checkpoint", style="n", anchor="middle", room=90)
    d.box(360, 98, 90, 38, "restart", kind="node")
    d.box(456, 98, 84, 38, "11 to 17", kind="stop")
    d.box(544, 98, 54, 38, "to 20")
    d.box(614, 98, 120, 38, "21 to 30")
    for left, top in ((251, 22), (599, 92)):
        d.box(left, top, 14, 50, kind="store")
    d.arrow((258, 94), (258, 117), (360, 117), dashed=True)
    d.text(498, 154, "trained twice", style="n", anchor="middle", room=90)
    d.arrow((130, 174), (740, 174))
    d.text(20, 178, "time", style="n")


@picture(760, 280)
def strategy(d: Drawing) -> None:
    """A strategy, its scope and the global batch.

    Variables made in strategy.scope() exist once on each replica and stay equal. A global batch of 128
    rows is cut into 64 for each replica. Each computes its gradients; their sum, divided by 128 rows,
    updates all copies.
    """
    d.box(20, 112, 130, 60, "global batch", "128 rows", kind="data")
    d.frame(210, 20, 380, 244, "with strategy.scope():  model, optimizer")
    for replica, top in ((0, 54), (1, 160)):
        d.box(226, top, 150, 88, f"replica {replica}", "a copy of all", "variables")
        d.box(430, top + 16, 144, 56, "gradients", "of 64 rows", kind="data")
        d.arrow((376, top + 44), (430, top + 44))
    d.arrow((150, 134), (180, 134), (180, 98), (226, 98))
    d.arrow((150, 150), (180, 150), (180, 204), (226, 204))
    d.text(158, 90, "64", style="n")
    d.text(158, 222, "64", style="n")
    d.box(630, 112, 114, 60, "all-reduce", "sum / 128", kind="store")
    d.arrow((574, 98), (687, 98), (687, 112))
    d.arrow((574, 204), (687, 204), (687, 172))
    d.text(602, 240, "the same update", style="n", room=150)
    d.text(602, 256, "in every copy", style="n", room=150)


@picture(760, 350)
def rungs(d: Drawing) -> None:
    """The rungs of a sweep.

    27 trials start. After 1 iteration, at the first rung, the best third continues; after 3 iterations
    again, and after 9; one trial reaches 27 iterations. 27 trials of 27 iterations would
    be 729; here it is 81.
    """
    left, unit = 90, 23
    ends = [3, 1, 1, 1, 9, 1, 1, 1, 3, 1, 27, 1, 1, 3, 1, 1, 1, 3, 1, 9, 1, 1, 3, 1, 1, 3, 1]
    for number, end in enumerate(ends):
        kind = {1: "stop", 27: "data"}.get(end, "process")
        d.box(left, 44 + 10 * number, unit * end - 3, 7, kind=kind)
    d.text(20, 52, "trial 1", style="n")
    d.text(20, 312, "trial 27", style="n")
    for rung in (1, 3, 9, 27):
        d.line((left + unit * rung - 1, 34), (left + unit * rung - 1, 318), dashed=True)
        label = {1: "rung 1", 3: "rung 2", 9: "rung 3", 27: "max_t"}[rung]
        place = "end" if rung == 1 else "middle"  # the first two are close to each other
        d.text(left + unit * rung, 28, label, style="b", anchor=place)
        d.text(left + unit * rung - 1, 334, f"{rung}", style="n", anchor="middle")
    d.text(20, 334, "iterations", style="n")
    d.text(330, 76, "18 of 27 trials stop at rung 1, 6 of 9 at rung 2,", style="n", room=400)
    d.text(330, 94, "2 of 3 at rung 3: 18·1 + 6·3 + 2·9 + 1·27 = 81", style="n", room=400)
    d.text(330, 112, "iterations instead of 27·27 = 729", style="n", room=400)


@picture(760, 240)
def population(d: Drawing) -> None:
    """Population based training with four trials.

    Time goes from left to right. After 3 and after 6 iterations, each trial of the worse half loads the
    checkpoint of a trial in the better half, and continues with a learning rate that is changed a little.
    The others continue as they were.
    """
    rates = (("0.001", "0.03 → 0.036", "0.036"), ("0.003", "0.1 → 0.08", "0.03 → 0.024"))
    rates += (("0.03", "0.03", "0.03"), ("0.1", "0.1", "0.036 → 0.043"))
    for trial, row in enumerate(rates):
        top = 30 + 46 * trial
        d.text(20, top + 21, f"trial {trial + 1}", style="b")
        for part, rate in enumerate(row):
            d.box(100 + 215 * part, top, 185, 32, f"lr {rate}", kind="stop" if "→" in rate else "process")
    for left, start, end in ((285, 138, 46), (285, 184, 92), (500, 138, 92), (500, 46, 184)):
        d.arrow((left, start), (left + 30, end), dashed=True)
    for part, label in enumerate(("iterations 1 to 3", "4 to 6", "7 to 9")):
        d.text(192 + 215 * part, 232, label, style="n", anchor="middle")


@picture(760, 290)
def lanes(d: Drawing) -> None:
    """Validation inside the loop and asynchronously.

    Inside the loop each validation stops the training. Asynchronously, each checkpoint is validated by
    a task of its own while the workers train the next epoch; validations run one at a time, and fit()
    waits for the last.
    """
    d.text(20, 30, "inside the loop", style="b")
    for k in range(3):
        d.box(130 + 200 * k, 44, 96, 38, f"epoch {k}")
        d.box(228 + 200 * k, 44, 96, 38, f"validate {k}", kind="store")
    d.text(20, 68, "workers", style="n")
    d.text(20, 122, "asynchronous", style="b")
    d.text(20, 160, "workers", style="n")
    d.text(20, 232, "validation task", style="n", room=110)
    for k in range(3):
        d.box(130 + 104 * k, 136, 96, 38, f"epoch {k}")
        d.box(230 + 104 * k, 208, 96, 38, f"validate {k}", kind="store")
        d.arrow((222 + 104 * k, 174), (234 + 104 * k, 208))
    d.line((536, 128), (536, 256), dashed=True)
    d.line((730, 36), (730, 90), dashed=True)
    d.text(542, 158, "fit() returns after", style="n", room=200)
    d.text(542, 174, "the last validation", style="n", room=200)
    d.text(240, 196, "checkpoint", style="n")
    d.arrow((130, 274), (740, 274))
    d.text(20, 278, "time", style="n")


@picture(760, 250)
def queue(d: Drawing) -> None:
    """Validations that are slower than epochs form a queue.

    Four epochs take one minute each, and a validation takes two. The first validation starts after the first
    epoch. Each checkpoint after it waits for its turn, longer than the one before. The workers are done after
    four minutes, and fit() returns after nine.
    """
    left, unit = 130, 66
    d.text(20, 54, "workers", style="b")
    d.text(20, 154, "validation", style="b", room=108)
    for k in range(4):
        d.box(left + unit * k, 30, unit - 4, 38, f"epoch {k}")
        start = left + unit * (1 + 2 * k)
        d.box(start, 130, 2 * unit - 4, 38, f"validate {k}", kind="store")
        d.arrow((left + unit * (k + 1) - 2, 68), (start, 130), dashed=k > 0)
    d.text(left + 5 * unit + 10, 70, "dashed: a checkpoint waits for its turn", style="n", room=300)
    d.line((left + 9 * unit - 2, 30), (left + 9 * unit - 2, 190), dashed=True)
    d.text(left + 9 * unit - 2, 206, "fit() returns", style="n", anchor="end")
    d.line((left + 4 * unit - 2, 24), (left + 4 * unit - 2, 112), dashed=True)
    d.text(left + 4 * unit + 6, 34, "the last step", style="n", room=120)
    d.arrow((left, 230), (740, 230))
    d.text(20, 234, "time", style="n")


@picture(760, 300)
def spark(d: Drawing) -> None:
    """TorchDistributor on Spark.

    The driver submits a job with one barrier stage of two tasks. The stage starts when both slots are
    free. Each task starts a Python process with a rank; the processes exchange gradients directly,
    without Spark. Rank 0's return value comes back to the driver.
    """
    d.frame(20, 40, 200, 220, "driver")
    d.box(36, 76, 168, 60, "your notebook", "TorchDistributor.run")
    d.box(36, 180, 168, 60, "SparkSession", "schedules tasks (JVM)")
    d.arrow((120, 136), (120, 180))
    d.frame(330, 40, 410, 220, "one barrier stage: all or none")
    for rank, top in ((0, 72), (1, 168)):
        d.box(346, top, 130, 72, f"executor {rank + 1}", f"slot: task {rank}")
        d.box(556, top, 168, 72, f"rank {rank}", "Python, PyTorch")
        d.arrow((476, top + 36), (556, top + 36))
        d.text(484, top + 28, "starts", style="n")
    d.arrow((204, 200), (270, 200), (270, 108), (346, 108))
    d.arrow((204, 214), (346, 206))
    d.text(226, 232, "2 tasks", style="n")
    d.arrow((640, 144), (640, 168), both=True)
    d.text(652, 161, "all-reduce", style="n", room=80)
    d.arrow((640, 72), (640, 22), (120, 22), (120, 76), dashed=True)
    d.text(300, 16, "the return value of rank 0", style="n", room=200)


@picture(760, 200)
def step_cost(d: Drawing) -> None:
    """What a step costs with one, two and four workers.

    One worker: a serial part, and the rows. Two workers: the same serial part, half of the rows for each,
    and an all-reduce. Four workers: the same serial part, a quarter of the rows, and a longer all-reduce.
    """
    for row, (workers, rows, reduce) in enumerate(((1, 480, 0), (2, 240, 90), (4, 120, 120))):
        y = 34 + 52 * row
        d.text(20, y + 24, f"{workers} worker{'s' * (workers > 1)}", style="b", room=80)
        d.box(110, y, 80, 38, "serial", kind="stop")
        d.box(190, y, rows, 38, "all rows" if workers == 1 else f"rows / {workers}", kind="data")
        if reduce:
            d.box(190 + rows, y, reduce, 38, "all-reduce")
    d.text(110, 22, "time of one step", style="n", room=200)


@picture(760, 250)
def sharding(d: Drawing) -> None:
    """What each of two ranks holds with DDP, ZeRO and FSDP2.

    With DDP, both ranks hold all parameters, gradients and optimizer states. With ZeRO, each rank holds half
    of the optimizer states. With FSDP2, each rank holds half of all three, and an all-gather brings the
    parameters of one block together while the block computes.
    """
    kinds = (("parameters", "process"), ("gradients", "data"), ("optimizer", "store"))
    for column, (name, halved) in enumerate((("DDP", 0), ("ZeRO", 1), ("FSDP2", 3))):
        left = 20 + 245 * column
        d.frame(left, 16, 230, 190, name)
        for rank in range(2):
            d.text(left + 12, 68 + 78 * rank, f"rank {rank}", style="n", room=44)
            for row, (kind, style) in enumerate(kinds):
                x, y = left + 62, 44 + 78 * rank + 24 * row
                if row >= 3 - halved:
                    d.box(x + 78 * rank, y, 78, 22, kind, kind=style)
                else:
                    d.box(x, y, 156, 22, kind, kind=style)
    d.text(265, 228, "half of the optimizer's states each", style="n", room=230)
    d.text(510, 228, "half of everything each, and one", style="n", room=230)
    d.text(510, 243, "whole block while it computes", style="n", room=230)
    d.text(20, 228, "everything on every rank", style="n", room=230)


@picture(760, 236)
def three_parts(d: Drawing) -> None:
    """Training, validation and test rows, and what each part decides.

    All rows are divided into three parts that share nothing. The training rows set the weights. The
    validation rows decide every choice: the learning rate, and which checkpoint is kept. The test rows
    decide nothing; they give the accuracy that is reported.
    """
    d.box(20, 88, 120, 60, "your rows", "a folder, a table", kind="store")
    for row, (part, share, use, detail) in enumerate(
        (
            ("training", "60 %", "weights", "set by every step"),
            ("validation", "15 %", "choices", "learning rate, checkpoint"),
            ("test", "25 %", "the answer", "decides nothing"),
        )
    ):
        y = 20 + 70 * row
        d.box(220, y, 150, 56, part, share, kind="stop" if part == "test" else "data")
        d.box(470, y, 220, 56, use, detail)
        d.arrow((140, 118), (180, 118), (180, y + 28), (220, y + 28))
        d.arrow((370, y + 28), (470, y + 28))


@picture(760, 190)
def standard_errors(d: Drawing) -> None:
    """Standard errors of two independent means add up like the sides of a right triangle.

    A right triangle. Its legs are the standard errors of the means of a and b. The hypotenuse is the standard
    error of their difference: the root of the sum of the squares.
    """
    d.line((200, 150), (440, 150), (440, 40), (200, 150))
    d.line((428, 150), (428, 138), (440, 138))
    d.text(320, 172, "standard error of the mean of a", anchor="middle")
    d.text(452, 100, "standard error of the mean of b")
    d.text(305, 85, "standard error of the difference", anchor="end")
    d.text(452, 150, "square both, add, take the root", style="n")


@picture(760, 300)
def three_ways(d: Drawing) -> None:
    """Three ways to validate one checkpoint.

    A function reads all rows in one process. A TorchTrainer starts two ranks; each reads a part of the rows,
    and an all-reduce adds up what they counted. With map_batches, tasks read blocks of rows, two actors judge
    them, and Ray Data adds up the column that the actors return.
    """
    d.box(20, 126, 110, 48, "checkpoint", kind="store")
    for row, name in enumerate(("function", "TorchTrainer", "map_batches")):
        y = 16 + 94 * row
        d.frame(190, y, 430, 84, name)
        d.arrow((130, 150), (160, 150), (160, y + 42), (190, y + 42))
        d.arrow((620, y + 42), (660, y + 42))
        d.box(660, y + 22, 86, 40, "metric", kind="data")
    d.box(400, 34, 200, 48, "one process", "reads all rows")
    d.box(320, 128, 100, 50, "rank 0", "half the rows")
    d.box(500, 128, 100, 50, "rank 1", "half the rows")
    d.arrow((420, 152), (500, 152), both=True)
    d.text(460, 140, "all-reduce", style="n", anchor="middle", room=80)
    d.box(310, 230, 70, 44, "tasks", "read", kind="data")
    d.box(410, 216, 90, 30, "actor")
    d.box(410, 252, 90, 30, "actor")
    d.arrow((380, 246), (410, 231))
    d.arrow((380, 258), (410, 267))
    d.box(530, 230, 76, 44, "mean", "of all", kind="data")
    d.arrow((500, 231), (530, 246))
    d.arrow((500, 267), (530, 258))


def main(arguments: list[str]) -> int:
    stale = []
    for name, draw in PICTURES.items():
        path, text = FOLDER / f"{name}.svg", str(draw())
        if path.exists() and path.read_text(encoding="utf-8") == text:
            continue
        stale.append(name)
        if "--check" not in arguments:
            FOLDER.mkdir(exist_ok=True)
            path.write_text(text, encoding="utf-8")
    print(f"{'differ' if '--check' in arguments else 'drawn'}: {', '.join(stale) or 'none'}")
    return int("--check" in arguments and bool(stale))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
