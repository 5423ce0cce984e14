"""Count down to one, with a pause after each number."""

import time

import numpy as np
import triton_python_backend_utils as pb_utils

PAUSE_S = 0.2


class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            self.answer(request, request.get_response_sender())

    def answer(self, request, sender):
        number = pb_utils.get_input_tensor_by_name(request, "FROM").as_numpy().item()
        while number > 0 and not sender.is_cancelled():  # the caller may be gone
            left = pb_utils.Tensor("LEFT", np.array([number], np.int32))
            sender.send(pb_utils.InferenceResponse([left]))
            time.sleep(PAUSE_S)
            number -= 1
        sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
