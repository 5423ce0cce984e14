"""Add up the numbers of each sequence."""

import json
import time

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        batching = json.loads(args["model_config"])["sequence_batching"]
        self.idle_s = int(batching["max_sequence_idle_microseconds"]) / 1e6
        self.totals = {}  # by sequence: its total, and when it was last used; the oldest first

    def execute(self, requests):
        self.forget_abandoned()
        return [self.answer(request) for request in requests]

    def answer(self, request):
        def read(name):
            return pb_utils.get_input_tensor_by_name(request, name).as_numpy()

        sequence = read("ID").item()
        total, _ = self.totals.pop(sequence, (0, 0))
        if read("START").item():
            total = 0
        total = total + read("X")
        if not read("END").item():
            self.totals[sequence] = total, time.monotonic()
        return pb_utils.InferenceResponse([pb_utils.Tensor("TOTAL", total)])

    def forget_abandoned(self):
        """Forget the sequences that Triton has given up: it does not say so."""
        before = time.monotonic() - self.idle_s
        while self.totals and next(iter(self.totals.values()))[1] < before:
            del self.totals[next(iter(self.totals))]
