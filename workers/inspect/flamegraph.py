"""A flame graph as one file: each call is below its caller, and as wide as it was seen often.

The file needs no other file. A click on a box widens it, and a click on the outermost box resets
the view. Without scripts the file is a picture, with the figures in each box's title. Colors tell
files apart and have no other meaning.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final
from xml.sax.saxutils import escape

from jobherd.workers.inspect.phrases import duration
from jobherd.workers.inspect.stacks import MAIN, Frame

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    Counts = Mapping[tuple[str, tuple[Frame, ...]], int]
    """How often each stack was seen, by thread and frames, outermost first."""

WIDTH: Final = 1200
ROW: Final = 18
SHADES: Final = ("#f6c28b", "#f3b07c", "#f0cf8a", "#eaa27b", "#f4d6a6", "#e8b98f", "#f2a98f", "#ecc777")
"""For dark letters on any background."""
_TOP: Final = 64
_LETTER: Final = 6.7
"""Width of a letter of the typeface, in the units of the picture."""
_NARROWEST: Final = 0.5
"""Narrower boxes are not drawn."""

_STYLE: Final = """
svg{background:#fff}text{font:11px ui-monospace,Menlo,Consolas,monospace;fill:#111}
.h{font-size:15px;font-weight:600}.s{fill:#555}
g.b{cursor:pointer}g.b:hover rect{stroke:#000;stroke-width:1}g.b text{pointer-events:none}
@media (prefers-color-scheme:dark){svg{background:#16181d}.h{fill:#eee}.s{fill:#aaa}g.b:hover rect{stroke:#fff}}
"""
_SCRIPT: Final = """
const boxes=[...document.querySelectorAll("g.b")].map(g=>(
{g,x:+g.dataset.x,w:+g.dataset.w,d:+g.dataset.d,t:g.dataset.t}));
function zoom(b){for(const o of boxes){const r=o.g.querySelector("rect"),t=o.g.querySelector("text");
const above=o.d<b.d&&o.x<=b.x+1e-2&&o.x+o.w>=b.x+b.w-1e-2,inside=o.x>=b.x-1e-2&&o.x+o.w<=b.x+b.w+1e-2&&o.d>=b.d;
o.g.style.display=above||inside?"":"none";const x=above?0:(o.x-b.x)*W/b.w,w=above?W:o.w*W/b.w;
r.setAttribute("x",x);r.setAttribute("width",Math.max(w-.6,.1));r.style.opacity=above?.55:1;
const n=Math.floor((w-6)/L);t.setAttribute("x",x+3);t.textContent=n<3?"":o.t.length>n?o.t.slice(0,n-1)+"\\u2026":o.t}}
for(const b of boxes){b.g.addEventListener("click",()=>zoom(b));
b.g.addEventListener("keydown",e=>{if(e.key==="Enter")zoom(b)})}
"""
SCRIPT: Final = f"const W={WIDTH},L={_LETTER};{_SCRIPT}"


@dataclass(frozen=True, slots=True)
class Box:
    """A call as it is drawn.

    x, width: in units of which `WIDTH` are the whole. depth: 0 is the outermost.
    """

    name: str
    x: float
    width: float
    depth: int
    shade: int
    title: str
    """The text of its title."""

    @property
    def shown(self) -> str:
        """As much of its name as fits."""
        letters = int((self.width - 6) / _LETTER)
        return "" if letters < 3 else self.name if len(self.name) <= letters else self.name[: letters - 1] + "…"


@dataclass(slots=True)
class _Call:
    file: str
    count: int = 0
    inner: dict[str, _Call] = field(default_factory=dict)


def document(counts: Counts, room: int) -> dict[str, Any]:
    """Return a profile as a JSON document of about `room` characters.

    Each frame is stored once, and each stack by the numbers of its frames. The most frequent stacks
    come first, and those that do not fit are counted together.
    """
    frames: dict[Frame, int] = {}
    stacks: list[list[Any]] = []
    other = 0
    for (thread, calls), count in sorted(counts.items(), key=lambda each: -each[1]):
        room -= (
            sum(len(call.file) + len(call.function) + 16 for call in set(calls) - frames.keys())
            + 6 * len(calls)
            + len(thread)
            + 16
        )
        if room < 0:
            other += count
        else:
            stacks.append([count, thread, " ".join([str(frames.setdefault(call, len(frames))) for call in calls])])
    stacks += [[other, "(other stacks)", ""]] if other else []
    return {"frames": [list(frame) for frame in frames], "stacks": stacks}


def counts_of(profile: Mapping[str, Any]) -> Counts:
    """Return the counts that `document` was made of."""
    frames = [Frame(*frame) for frame in profile["frames"]]
    return {
        (thread, tuple(frames[int(number)] for number in numbers.split())): count
        for count, thread, numbers in profile["stacks"]
    }


def folded(counts: Counts) -> str:
    """Return one line per stack, as flame-graph tools read it.

    A line has the calls, separated by semicolons, and how often the stack was seen.

    >>> print(folded({("main thread", (Frame("send", "mail.py", 7),)): 3}), end="")
    main thread;send (mail.py:7) 3
    """
    lines = [";".join([thread, *(str(frame).replace(";", ":") for frame in frames)]) for thread, frames in counts]
    return "".join(f"{line} {count}\n" for line, count in sorted(zip(lines, counts.values(), strict=True)))


def hottest(counts: Counts, most: int) -> list[tuple[Frame, float]]:
    """Return the calls seen most often as the innermost of the main thread, with their share of its samples."""
    inner: dict[Frame, int] = {}
    total = 0
    for (thread, frames), count in counts.items():
        if thread == MAIN and frames:
            inner[frames[-1]] = inner.get(frames[-1], 0) + count
            total += count
    return [(frame, count / total) for frame, count in sorted(inner.items(), key=lambda each: -each[1])[:most]]


def boxes(counts: Counts, seconds: float) -> list[Box]:
    """Return the boxes to draw, the outermost first.

    seconds: duration of the profile. Each box's title shows its share of it.
    """
    root = _Call("")
    for (thread, frames), count in counts.items():
        call = root
        call.count += count
        for name, file in (
            (thread, ""),
            *((f"{frame.function} ({_short(frame.file)}:{frame.line})", frame.file) for frame in frames),
        ):
            call = call.inner.setdefault(name, _Call(file))
            call.count += count
    return list(_boxes("all", root, 0.0, 0, each=WIDTH / max(root.count, 1), seconds=seconds, shades={}))


def _boxes(
    name: str, call: _Call, x: float, depth: int, *, each: float, seconds: float, shades: dict[str, int]
) -> Iterator[Box]:
    """Yield the box of a call and the boxes of the calls below it.

    each: width of a call that was seen once. shades: numbers by file, in order of appearance.
    """
    width = each * call.count
    share = width / WIDTH
    title = f"{name}: {share:.1%} of all, {duration(share * seconds)}, seen {call.count} times"
    yield Box(name, x, width, depth, shades.setdefault(call.file, len(shades)) % len(SHADES), title)
    for inner_name, inner in sorted(call.inner.items(), key=lambda item: item[0]):
        if each * inner.count >= _NARROWEST:
            yield from _boxes(inner_name, inner, x, depth + 1, each=each, seconds=seconds, shades=shades)
        x += each * inner.count


def picture(counts: Counts, *, title: str, about: str, seconds: float) -> str:
    """Return the graph as an SVG document.

    title, about: the two lines above it. seconds: duration of the profile.
    """
    drawn = boxes(counts, seconds)
    height = _TOP + ROW * (max(box.depth for box in drawn) + 1) + 12
    return "\n".join(
        [
            (
                f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
                f'width="{WIDTH}" height="{height}" role="img">'
            ),
            f"<title>{_text(title)}</title>",
            f"<style>{_STYLE}</style>",
            f'<text class="h" x="8" y="24">{_text(title)}</text>',
            f'<text class="s" x="8" y="44">{_text(about)}</text>',
            *(_drawn(box) for box in drawn),
            f"<script>{escape(SCRIPT)}</script>",
            "</svg>\n",
        ]
    )


def _drawn(box: Box) -> str:
    y = _TOP + box.depth * ROW
    return (
        f'<g class="b" tabindex="0" data-x="{box.x:.3f}" data-w="{box.width:.3f}" data-d="{box.depth}" '
        f'data-t="{_attribute(box.name)}"><title>{_text(box.title)}</title>'
        f'<rect x="{box.x:.2f}" y="{y}" width="{max(box.width - 0.6, 0.1):.2f}" height="{ROW - 1}" rx="2" '
        f'fill="{SHADES[box.shade]}"/><text x="{box.x + 3:.2f}" y="{y + 13}">{_text(box.shown)}</text></g>'
    )


def _short(file: str) -> str:
    return "/".join(file.rsplit("/", 2)[-2:])


def _text(text: str) -> str:
    return escape("".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in text))


def _attribute(text: str) -> str:
    return _text(text).replace('"', "&quot;")
