"""Have another model double numbers (BLS), and spell the results."""

import numpy as np
import triton_python_backend_utils as pb_utils
from num2words import num2words  # only the packed environment has it


class TritonPythonModel:
    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        numbers = pb_utils.get_input_tensor_by_name(request, "NUMBER").as_numpy()
        asked = pb_utils.InferenceRequest(
            model_name="double",
            inputs=[pb_utils.Tensor("X", numbers)],
            requested_output_names=["Y"],
        )
        came = asked.exec()
        if came.has_error():
            return pb_utils.InferenceResponse(error=came.error())
        doubled = pb_utils.get_output_tensor_by_name(came, "Y").as_numpy()
        words = [num2words(int(number)).encode() for number in doubled.ravel()]
        tensor = pb_utils.Tensor("WORDS", np.array(words, dtype=object).reshape(doubled.shape))
        return pb_utils.InferenceResponse([tensor])
