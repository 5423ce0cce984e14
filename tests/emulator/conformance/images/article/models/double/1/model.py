import time

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args: object) -> None:
        time.sleep(2)  # as a model of some size takes

    def execute(self, requests: list) -> list:
        return [self.answered(one) for one in requests]

    def answered(self, request: object) -> object:
        x = pb_utils.get_input_tensor_by_name(request, "X").as_numpy()
        time.sleep(float(x[0]) if x[0] > 1 else 0.05)
        return pb_utils.InferenceResponse([pb_utils.Tensor("Y", 2 * x)])
