"""Pictures of the dashboards for the documentation, drawn by matplotlib from the panels' queries.

Grafana itself is in no package registry, so these are not its own pictures: place, title, query and
kind of each panel are the dashboard's, the data are a real Prometheus'.

    python -m tests.support.dashboard_pictures

serves three models under load for ten minutes, kills Triton once, and writes docs/pictures/. It
wants matplotlib, which is not among the packages of the tests.
"""

from __future__ import annotations

import argparse
import io
import re
import signal
import tempfile
import textwrap
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from PIL import Image

from tests.conftest import PROJECT, running
from tests.support.chaos import hit
from tests.support.dashboards import Json, dashboards, filled, under_load
from tests.support.prometheus import Prometheus, prometheus

PLACE = PROJECT / "docs" / "pictures"
MODEL, WINDOW, STEP_S = "resnet", "30s", 5
WIDE, UNIT_IN, HEAD_IN = 15.0, 0.31, 0.45
COLUMNS, COLOURS, MOST_NAMES = 24, 128, 8
GREY = "#555555"


def unit(value: float, kind: str) -> str:
    """Return a number as Grafana shows it, roughly."""
    if kind == "percentunit":
        return f"{100 * value:.3g} %"
    if kind == "s":
        return f"{value:.3g} s" if value >= 1 or value == 0 else f"{1000 * value:.3g} ms"
    if kind == "bytes":
        return f"{value / 2**30:.3g} GiB" if value >= 2**30 else f"{value / 2**20:.3g} MiB"
    before, after = {"reqps": ("", " req/s"), "currencyUSD": ("$", "")}.get(kind, ("", ""))
    return f"{before}{value:,.0f}{after}" if value >= 1000 else f"{before}{value:.3g}{after}"


class Drawing:
    """Draws the panels of a dashboard.

    Args:
        source: where the data are.
        begin, end: the span of time that is shown, in Unix time.

    """

    def __init__(self, source: Prometheus, begin: float, end: float) -> None:
        self.source, self.begin, self.end = source, begin, end

    def dashboard(self, dashboard: Json) -> bytes:
        """Return a picture as PNG."""
        places = [panel["gridPos"] for panel in dashboard["panels"]]
        rows = max(place["y"] + place["h"] for place in places)
        high = rows * UNIT_IN + HEAD_IN
        figure = Figure(figsize=(WIDE, high))
        title = f"triton-dispatcher / {dashboard['title']}"
        figure.text(0.01, 1 - 0.2 / high, title, size=12, weight="bold", va="center")
        for panel, place in zip(dashboard["panels"], places, strict=True):
            left, width = place["x"] / COLUMNS, place["w"] / COLUMNS
            top = 1 - (HEAD_IN + place["y"] * UNIT_IN) / high
            low = top - place["h"] * UNIT_IN / high
            plot = panel["type"] in {"timeseries", "heatmap"}
            ends = (0.045, 0.006) if plot else (0.008, 0.008)
            under, over = (0.62 if plot else 0.08) / high, 0.3 / high
            box = (left + ends[0], low + under, width - sum(ends), top - low - under - over)
            axes = figure.add_axes(box)
            figure.text(left + 0.006, top - 0.15 / high, panel["title"], size=8.5, weight="bold")
            getattr(self, panel["type"])(axes, panel)
        written = io.BytesIO()
        figure.savefig(written, dpi=80)
        return written.getvalue()

    def asked(self, panel: Json, *, past: bool) -> Iterator[tuple[str, Json]]:
        """Yield the series of a panel with their names."""
        for target in panel["targets"]:
            query = filled(target["expr"], MODEL, WINDOW)
            if past:
                found = self.source.history(query, self.begin, self.end, STEP_S)
            else:
                found = self.source.get("/api/v1/query", query=query, time=str(self.end))["result"]
            for one in found:
                name = target.get("legendFormat", "")
                for label, value in one["metric"].items():
                    name = name.replace(f"{{{{{label}}}}}", value)
                yield re.sub(r" ?{{\w+}}", "", name), one

    def timeseries(self, axes: Axes, panel: Json) -> None:
        times = np.arange(self.begin, self.end + 1, STEP_S)
        rows: dict[str, Any] = {}
        for name, one in self.asked(panel, past=True):
            values = np.full(len(times), np.nan)
            for at, value in one["values"]:
                values[round((at - self.begin) / STEP_S)] = float(value)
            rows[name] = values
        defaults = panel["fieldConfig"]["defaults"]
        minutes = (times - self.end) / 60
        if not rows:
            axes.text(0.5, 0.5, "no data", ha="center", color=GREY, transform=axes.transAxes)
        elif "stacking" in defaults["custom"]:
            axes.stackplot(minutes, *map(np.nan_to_num, rows.values()), labels=rows, alpha=0.8)
        else:
            style = "steps-post" if "lineInterpolation" in defaults["custom"] else "default"
            for name, values in rows.items():
                axes.plot(minutes, values, label=name, lw=1, drawstyle=style)
        self.frame(axes, minutes)
        axes.yaxis.set_major_formatter(lambda value, _: unit(value, defaults["unit"]))
        axes.set_ylim(bottom=0, top=1.08 if defaults.get("max") else None)
        if rows:
            handles, labels = axes.get_legend_handles_labels()
            place = {"loc": "upper left", "bbox_to_anchor": (0, -0.12), "borderaxespad": 0}
            look = {"fontsize": 5.5, "frameon": False, "ncols": 4}
            axes.legend(handles[:MOST_NAMES], labels, **place, **look)

    def heatmap(self, axes: Axes, panel: Json) -> None:
        found = {one["metric"]["le"]: one["values"] for _, one in self.asked(panel, past=True)}
        edges = sorted(found, key=float)
        counts = np.array([[float(value) for _, value in found[edge]] for edge in edges])
        minutes = np.array([(at - self.end) / 60 for at, _ in found[edges[0]]])
        within = np.diff(counts, axis=0, prepend=0)
        within[within <= 0] = np.nan
        axes.pcolormesh(minutes, np.arange(len(edges)), within, cmap="Oranges", shading="nearest")
        axes.set_yticks(np.arange(len(edges)), [f"{edge} s" for edge in edges])
        self.frame(axes, minutes)

    def frame(self, axes: Axes, minutes: Any) -> None:
        axes.tick_params(labelsize=6, colors=GREY, length=2)
        axes.grid(alpha=0.25)
        axes.set_xlim(minutes[0], 0)
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:g} min" if value else "now")
        axes.spines[["top", "right"]].set_visible(False)

    def stat(self, axes: Axes, panel: Json) -> None:
        axes.axis("off")
        defaults = panel["fieldConfig"]["defaults"]
        found = [(name, float(one["value"][1])) for name, one in self.asked(panel, past=False)]
        name, value = found[0] if found else ("no data", 0.0)
        shown = unit(value, defaults["unit"]) if found else name
        if panel["options"]["textMode"] == "name":
            shown = name
        for mapping in defaults.get("mappings", []):
            shown = mapping["options"].get(f"{value:g}", {"text": shown})["text"]
        steps = [step for step in defaults["thresholds"]["steps"] if (step["value"] or 0) <= value]
        colour = {"text": "#222222", "orange": "darkorange"}.get(steps[-1]["color"])
        colour = colour or steps[-1]["color"]
        size = 17 if len(shown) < MOST_NAMES + 4 else 12
        axes.text(0.5, 0.5, shown, ha="center", va="center", size=size, color=colour)

    def bargauge(self, axes: Axes, panel: Json) -> None:
        found = [(name, float(one["value"][1])) for name, one in self.asked(panel, past=False)]
        names, values = zip(*found, strict=True)
        axes.barh(names, values, color="#73bf69", height=0.6)
        for at, value in enumerate(values):
            shown = unit(value, panel["fieldConfig"]["defaults"]["unit"])
            axes.text(0, at, f" {names[at]}: {shown}", va="center", size=8)
        axes.axis("off")

    def table(self, axes: Axes, panel: Json) -> None:
        axes.axis("off")
        lines = []
        for _, one in self.asked(panel, past=False):
            hidden = {"__name__", "job", "alertstate"}
            lines.append(", ".join(v for k, v in one["metric"].items() if k not in hidden))
        text = "\n".join(textwrap.fill(line, 70) for line in lines) or "none"
        axes.text(0.02, 0.95, text, va="top", size=7, transform=axes.transAxes)


@contextmanager
def seen(minutes: float) -> Iterator[tuple[Prometheus, float]]:
    """Serve three models under load, kill Triton in the middle; yield the data and their begin."""
    with (
        tempfile.TemporaryDirectory(prefix="dashboards-") as name,
        running(Path(name)) as endpoint,
        prometheus(Path(name), endpoint.port, every="5s") as source,
        under_load(endpoint),
    ):
        begin = time.time() + STEP_S
        time.sleep(30 * minutes)
        hit(endpoint, "Triton", signal.SIGKILL)
        time.sleep(30 * minutes)
        yield source, begin


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=10)
    mpl.rcParams["font.size"] = 7
    with seen(parser.parse_args().minutes) as (source, begin):
        end = begin + (time.time() - begin) // STEP_S * STEP_S
        drawing = Drawing(source, begin, end)
        for dashboard in dashboards().values():
            picture = Image.open(io.BytesIO(drawing.dashboard(dashboard))).convert("RGB")
            name = f"{dashboard['uid'].replace('dispatcher', 'dashboard')}.png"
            picture.quantize(COLOURS).save(PLACE / name, optimize=True)


if __name__ == "__main__":
    main()
