"""Decode pictures with OpenCV, and resize them to what the classifier takes."""

import cv2
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        files = pb_utils.get_input_tensor_by_name(request, "IMAGE").as_numpy()
        try:
            pixels = np.stack([decoded(file) for file in files.ravel()])
        except ValueError as error:  # an exception would fail the whole batch, the others' too
            return pb_utils.InferenceResponse(error=pb_utils.TritonError(str(error)))
        return pb_utils.InferenceResponse([pb_utils.Tensor("PIXELS", pixels)])


def decoded(file):
    """Return a picture as float32 RGB of shape [3, 32, 32], from 0 to 1."""
    picture = cv2.imdecode(np.frombuffer(file, np.uint8), cv2.IMREAD_COLOR) if file else None
    if picture is None:
        raise ValueError("IMAGE is no picture that OpenCV can decode")
    small = cv2.resize(picture, (32, 32), interpolation=cv2.INTER_AREA)
    return np.ascontiguousarray(small[:, :, ::-1].transpose(2, 0, 1), np.float32) / 255
