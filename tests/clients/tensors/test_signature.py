"""What an input of another type is answered."""

from __future__ import annotations

from clients.tensors.signature import another_type


def test_floats_for_bytes_are_said_to_be_pixels_of_0_to_255() -> None:
    """Parts of 1 would all become 0."""
    assert another_type("FP32", "UINT8").endswith("; pixels are 0 to 255")
    assert "pixels" not in another_type("INT64", "UINT8") + another_type("FP64", "FP32")
