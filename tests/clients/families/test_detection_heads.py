"""Heads beyond YOLO's boxes: expected values are computed by hand, as the comments say."""

from __future__ import annotations

import io
import math
from typing import Any

import numpy as np
import pytest
from PIL import Image

from clients.errors import BadParameter, ClientDisabled, ModelFailed
from clients.images import shapes
from clients.request import Request
from tests.support.family_bench import Bench, bench, picture, plain, signature

__all__ = ["bench"]  # the fixture

TWO = "cat\ndog\n"


def found(
    bench: Bench, toml: str, labels: str, outputs: dict[str, np.ndarray], **parameters: Any
) -> list[dict[str, Any]]:
    """Return what a detector of 64×64 answers to a picture of 128×64, half of which fits."""
    tensors = signature({"x": (3, 64, 64)}, {name: one.shape for name, one in outputs.items()})
    bench.set_up(f'family = "detection"\n{toml}', tensors, labels)
    bench.answers(lambda inputs: {name: one[None] for name, one in outputs.items()})
    objects: list[dict[str, Any]] = bench.ask(
        picture(plain(64, 128, [9, 9, 9])), **{"format": "objects", **parameters}
    )
    return objects


def columns(*rows: list[float], count: int = 100) -> np.ndarray:
    """A YOLOv8's output, with these boxes and others that hold nothing."""
    table = np.zeros((len(rows[0]), count), np.float32)
    table[:, : len(rows)] = np.array(rows).T
    return table


def corners(one: dict[str, Any]) -> list[float]:
    return [one["box"][name] for name in ("x1", "y1", "x2", "y2")]


def test_yolox_boxes_lie_in_the_cells_of_three_grids(bench: Bench) -> None:
    """64×64 has 8², 4² and 2² cells; the picture fills its upper half, so y is doubled alone."""
    table = np.zeros((84, 7), np.float32)
    # Column 3, row 2 of 8: centre (3.5, 2.25) × 8, size (2, 1) × 8: x 20…36, y 14…22
    table[2 * 8 + 3] = [0.5, 0.25, math.log(2), 0, 0.9, 0.1, 1]
    # Column 2, row 1 of the 4² cells of 16: centre (32, 16), size 16: x 24…40, y 8…24
    table[64 + 1 * 4 + 2] = [0, 0, 0, 0, 0.8, 1, 0.2]
    first, second = found(bench, 'output_layout = "yolox"', TWO, {"y": table})
    assert (first["label"], first["score"]) == ("dog", 0.9)
    assert corners(first) == pytest.approx([40, 28, 72, 44], abs=0.01)
    assert (second["label"], second["score"]) == ("cat", 0.8)
    assert corners(second) == pytest.approx([48, 16, 80, 48], abs=0.01)
    assert bench.server.calls[-1]["hints"].above == {}  # a box left out would move the others


def test_yolox_of_another_size_is_an_error_and_boxes_may_suppress_other_classes(
    bench: Bench,
) -> None:
    two = [32, 32, 16, 8, 0.9, 0.1], [33, 32, 16, 8, 0.1, 0.8]
    assert len(found(bench, 'output_layout = "yolov8"', TWO, {"y": columns(*two)})) == 2
    toml = 'output_layout = "yolov8"\nagnostic_nms = true'
    assert len(found(bench, toml, TWO, {"y": columns(*two)})) == 1
    with pytest.raises(Exception, match="gives 100 boxes, but by `output_layout` there are 84"):
        found(bench, 'output_layout = "yolox"', TWO, {"y": np.ones((100, 7), np.float32)})


def test_retinaface_boxes_and_landmarks_are_relative_to_priors(bench: Bench) -> None:
    """Two priors in each of 8², 4² and 2² cells."""
    at = 2 * 64 + 2 * (1 * 4 + 2) + 1  # column 2, row 1 of the cells of 16, the larger prior
    places, scores = np.zeros((168, 4), np.float32), np.zeros((168, 2), np.float32)
    marks = np.zeros((168, 10), np.float32)
    # The prior: centre (40, 24), side 128. Centre 40 - 0.5 × 0.1 × 128 = 33.6, size 32 × 16.
    places[at] = [-0.5, 0, math.log(1 / 4) / 0.2, math.log(1 / 8) / 0.2]
    scores[at] = [0.1, 0.9]
    marks[at, :4] = [-0.5, 0.25, 0, 0]  # (33.6, 24 + 3.2), (40, 24)
    outputs = {"landms": marks, "conf": scores, "loc": places}
    (face,) = found(bench, 'output_layout = "retinaface"', "face\n", outputs)
    assert (face["label"], face["score"]) == ("face", 0.9)
    assert corners(face) == pytest.approx([2 * 17.6, 2 * 16, 2 * 49.6, 2 * 32], abs=0.01)
    assert len(face["keypoints"]) == 5
    assert face["keypoints"][0] == {"x": pytest.approx(67.2), "y": pytest.approx(54.4)}
    assert face["keypoints"][1] == {"x": 80, "y": 48}
    assert found(bench, 'output_layout = "retinaface"', "face\n", outputs, confidence=0.95) == []
    del outputs["landms"]
    (face,) = found(bench, 'output_layout = "retinaface"', "face\n", outputs)
    assert "keypoints" not in face


def test_an_ssd_brings_its_priors_in_a_file(bench: Bench) -> None:
    toml = 'output_layout = "ssd"\nfit = "stretch"'
    places, scores = np.zeros((3, 4), np.float32), np.zeros((3, 3), np.float32)
    scores[1] = [0.2, 0.1, 0.7]
    with pytest.raises(Exception, match="`priors` is missing; write the name of a file"):
        found(bench, toml, TWO, {"loc": places, "conf": scores})
    toml += '\npriors = "priors.npy"'
    np.save(bench.folder / "priors.npy", np.zeros((3, 5)))
    with pytest.raises(Exception, match=r"has not \[boxes, 4\]"):
        found(bench, toml, TWO, {"loc": places, "conf": scores})
    np.save(
        bench.folder / "priors.npy", np.array([[0.5, 0.5, 1, 1], [0.25, 0.5, 0.5, 0.5]] * 2)[:3]
    )
    (dog,) = found(bench, toml, TWO, {"loc": places, "conf": scores})
    assert (dog["label"], dog["score"], corners(dog)) == ("dog", 0.7, [0, 16, 64, 48])


def test_centerface_has_a_cell_of_four_maps(bench: Bench) -> None:
    heat = np.zeros((1, 16, 16), np.float32)
    sizes, offsets = np.zeros((2, 2, 16, 16), np.float32)
    marks = np.zeros((10, 16, 16), np.float32)
    heat[0, 4, 6] = 0.9
    sizes[:, 4, 6] = math.log(2), math.log(4)  # 8 high, 16 wide
    offsets[:, 4, 6] = 0.25, -0.5  # centre y (4 + 0.25 + 0.5) × 4 = 19, x 24: x 16…32, y 15…23
    marks[:2, 4, 6] = 0.5, 0.25  # y 15 + 4, x 16 + 4
    outputs = {"h": heat, "s": sizes, "o": offsets, "l": marks}
    (face,) = found(bench, 'output_layout = "centerface"', "face\n", outputs)
    assert corners(face) == pytest.approx([32, 15, 64, 23], abs=0.01)  # it is stretched
    assert face["keypoints"][0] == {"x": pytest.approx(40), "y": pytest.approx(19)}
    assert found(bench, 'output_layout = "centerface"', "face\n", outputs, confidence=0.95) == []
    with pytest.raises(ClientDisabled, match=r"of `h` .* none has 2 numbers"):
        found(bench, 'output_layout = "centerface"\noutputs = ["h", "s"]', "face\n", outputs)
    with pytest.raises(ClientDisabled, match='`outputs` has "z"; the model has h, s, o, l'):
        found(bench, 'output_layout = "centerface"\noutputs = ["z"]', "face\n", outputs)


# In the square of 64 the picture is 64×32, 16 below the top: x × 2, (y - 16) × 2.


def test_a_pose_has_keypoints_with_scores(bench: Bench) -> None:
    pose = [20, 20, 0.25, 70, 60, 0.9]  # (40, 8), and (140, 88), beside the picture
    table = columns([32, 32, 16, 8, 0.9, *pose])
    toml = 'output_layout = "yolov8"\nkeypoints = [2, 3]'
    (person,) = found(bench, toml, "person\n", {"y": table})
    assert person["keypoints"] == [
        {"x": 40, "y": 8, "score": 0.25}, {"x": 140, "y": 88, "score": pytest.approx(0.9)}
    ]  # fmt: skip
    assert found(bench, toml, "person\n", {"y": table}, format="compact") == [
        [0, 0.9, 48, 80, 24, 40, 128, 64]
    ]
    assert found(bench, toml, "person\n", {"y": table}, confidence=0.95) == []
    table[[0, 1, 2, 3, 5, 6, 8, 9]] /= 64
    (same,) = found(bench, f"{toml}\nnormalised = true", "person\n", {"y": table})
    assert [one["x"] for one in same["keypoints"]] == pytest.approx([40, 140], abs=1e-3)
    rows = np.zeros((300, 12), np.float32)
    rows[0] = [24, 28, 40, 36, 0.9, 0, *pose]
    toml = toml.replace("yolov8", "end2end")
    assert found(bench, toml, "person\n", {"y": rows}) == [person]


def test_a_rotated_box_has_corners_and_the_upright_box_around_it(bench: Bench) -> None:
    """A quarter turn of 16×8 is 8×16: x 28…36, y 24…40."""
    toml = 'output_layout = "yolov8"\nrotated = true'
    table = columns([32, 32, 16, 8, 0.1, 0.9, math.pi / 2])
    (one,) = found(bench, toml, TWO, {"y": table})
    assert corners(one) == pytest.approx([56, 16, 72, 48], abs=0.01)
    at = [(point["x"], point["y"]) for point in one["corners"]]
    # Right below, right above, left above, left below before it was turned clockwise.
    assert at == [(56, 48), (72, 48), (72, 16), (56, 16)]
    assert found(bench, toml, TWO, {"y": table}, confidence=0.95) == []
    row = found(bench, toml, TWO, {"y": table}, format="compact")
    assert row == [[1, 0.9, 56, 72, 16, 48, 128, 64]]
    rows = np.zeros((300, 7), np.float32)
    rows[0] = [32, 32, 16, 8, 0.9, 1, math.pi / 2]
    toml = toml.replace("yolov8", "end2end")
    assert found(bench, toml, TWO, {"y": rows}) == [one]


def test_rotated_boxes_suppress_each_other_by_their_gaussians(bench: Bench) -> None:
    toml = 'output_layout = "yolov8"\nrotated = true'
    # Two crossing bars have the same upright box, but share little.
    cross = [[32, 32, 30, 4, 0.9, 0, angle] for angle in (math.pi / 4, -math.pi / 4)]
    assert len(found(bench, toml, TWO, {"y": columns(*cross)})) == 2
    # Equal squares that are half a side apart: 1 - sqrt(1 - exp(-1.5 × 0.5²)) = 0.4408
    squares = [[20, 32, 16, 16, 0.9, 0, 0], [28, 32, 16, 16, 0.8, 0, 0]]
    for iou, count in ((0.45, 2), (0.44, 1)):
        assert len(found(bench, toml, TWO, {"y": columns(*squares)}, iou=iou)) == count
    squares[1][4:6] = 0, 0.8  # of another class
    assert len(found(bench, toml, TWO, {"y": columns(*squares)}, iou=0.1)) == 2


def masked() -> dict[str, np.ndarray]:
    """A box of x 24…40, y 28…36 whose mask is the left half of the square.

    That ends at x 32. In the picture: box x 48…80, y 24…40, mask until 64.
    """
    maps = np.zeros((3, 16, 16), np.float32)
    maps[0] = 1
    maps[0, :, 8:] = -1
    return {"y": columns([32, 32, 16, 8, 0.9, 0.1, 2, 0, 0]), "maps": maps}


def test_a_mask_is_polygons_or_run_lengths(bench: Bench) -> None:
    toml = 'output_layout = "yolov8"'
    (one,) = found(bench, toml, TWO, masked())
    (polygon,) = one["mask"]
    assert sorted(polygon) == [[48, 24], [48, 39], [63, 24], [63, 39]]
    assert found(bench, toml, TWO, masked(), confidence=0.95) == []
    (one,) = found(bench, toml, TWO, masked(), masks="rle")
    assert one["mask"]["size"] == [64, 128]
    counts = one["mask"]["counts"]
    assert counts[:3] == [48 * 64 + 24, 16, 48]  # zeros, ones, zeros: 16 of 64 rows
    mask = np.repeat(np.arange(len(counts)) % 2, counts).reshape(128, 64).T
    assert mask.sum() == 16 * 16
    assert (mask[24:40, 48:64] == 1).all()
    bench.answers(lambda inputs: {"y": masked()["y"][None]})  # the maps are not asked for
    img = picture(plain(64, 128, [9, 9, 9]))
    assert bench.ask(img) == [[0, 0.9, 48, 80, 24, 40, 128, 64]]


def test_runs_go_on_from_the_foot_of_a_column(bench: Bench) -> None:
    outputs = masked()
    outputs["y"][:4, 0] = 32, 32, 64, 64  # the whole picture, of which the left half is one run
    (one,) = found(bench, 'output_layout = "yolov8"', TWO, outputs, masks="rle")
    assert one["mask"]["counts"] == [0, 64 * 64, 64 * 64]
    outputs["maps"][0] = 1
    (one,) = found(bench, 'output_layout = "yolov8"', TWO, outputs, masks="rle")
    assert one["mask"]["counts"] == [0, 128 * 64]


def test_masks_of_no_pixels_and_of_too_many_numbers(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    outputs = masked()
    outputs["y"][:4, 0] = 32, 8, 4, 4  # above the picture
    (one,) = found(bench, 'output_layout = "yolov8"', TWO, outputs)
    assert one["mask"] == []
    (one,) = found(bench, 'output_layout = "yolov8"', TWO, outputs, masks="rle")
    assert one["mask"]["counts"] == [128 * 64]
    monkeypatch.setattr(shapes, "MOST_NUMBERS", 7)  # a rectangle has four places
    with pytest.raises(BadParameter, match="more than 7 numbers"):
        found(bench, 'output_layout = "yolov8"', TWO, masked())
    outputs["y"][6, 0] = math.nan
    with pytest.raises(ModelFailed, match="is not finite"):
        found(bench, 'output_layout = "yolov8"', TWO, outputs)


def test_masks_keypoints_and_rotated_boxes_are_drawn(bench: Bench) -> None:
    def drawn(toml: str, labels: str, outputs: dict[str, np.ndarray]) -> np.ndarray:
        found(bench, toml, labels, outputs)
        client, payload = bench.client(), picture(plain(64, 128, [9, 9, 9]))
        parameters = client.read_parameters({"masks": "rle"})
        with Request(parameters=parameters, draws=True).active():
            file = client.draw(payload, client.inference(payload), "image/png")
        return np.asarray(Image.open(io.BytesIO(file))).astype(int)

    whole = masked()
    whole["y"][:4, 0] = 32, 32, 64, 64
    pixels = drawn('output_layout = "yolov8"', TWO, whole)
    assert (pixels[55, 30] != 9).any()  # in the mask, below the name
    assert (pixels[55, 100] == 9).all()  # in the box, beside the mask
    pose = columns([32, 40, 16, 8, 0.9, 50, 44, 0.9, 55, 20, 0.1])
    pixels = drawn('output_layout = "yolov8"\nkeypoints = [2, 3]', "person\n", {"y": pose})
    assert (pixels[56, 100] != 9).any()
    assert (pixels[8, 110] == 9).all()  # not sure
    bar = columns([32, 32, 40, 4, 0.9, 0.1, math.pi / 4])
    pixels = drawn('output_layout = "yolov8"\nrotated = true', TWO, {"y": bar})
    assert (pixels[40, 35] == 9).all()  # the left side of the upright box
