"""A moving picture of something on a page: screenshots while it changes, played at twice the speed."""

import io
import time
from pathlib import Path

from PIL import Image
from playwright.sync_api import Error, Locator, TimeoutError

_SPEED = 2
_LAST = 4000  # ms for which the end is shown, before it restarts


class Film:
    def __init__(self) -> None:
        self._frames: list[tuple[float, bytes]] = []

    def take(self, shown: Locator) -> None:
        """Add what is shown now, if that has changed.

        A picture is left out when JupyterLab takes the element off the page meanwhile: it draws a cell
        again when it scrolls, and the next call finds the new element. So is one for which a busy machine
        has no time.
        """
        try:
            picture = shown.screenshot(animations="disabled", caret="hide", timeout=5000)
        except TimeoutError:
            return
        except Error as error:
            if "not attached" not in str(error):
                raise
            return
        if not self._frames or picture != self._frames[-1][1]:
            self._frames.append((time.monotonic(), picture))

    @property
    def latest(self) -> bytes:
        """The last picture, as PNG."""
        return self._frames[-1][1]

    def __len__(self) -> int:
        return len(self._frames)

    def save(self, path: Path) -> None:
        """Write it as an animated WebP that repeats. Smaller pictures are at the top of the largest."""
        pictures = [Image.open(io.BytesIO(picture)).convert("RGBA") for _, picture in self._frames]
        size = tuple(max(sides) for sides in zip(*(picture.size for picture in pictures), strict=True))
        frames = []
        for picture in pictures:
            frame = Image.new("RGBA", size)
            frame.paste(picture)
            frames.append(frame)
        times = [moment for moment, _ in self._frames]
        lasting = [
            round(1000 * (later - earlier) / _SPEED) for earlier, later in zip(times, times[1:], strict=False)
        ]
        frames[0].save(
            path,
            save_all=True,
            append_images=frames[1:],
            duration=[*lasting, _LAST],
            loop=0,
            lossless=True,
            method=6,
        )
