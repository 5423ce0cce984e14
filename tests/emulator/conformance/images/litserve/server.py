# LitServe reads annotations; this is as short as its users write it.
# ruff: noqa: ANN001, ANN201
import time

import litserve


class Model(litserve.LitAPI):
    def setup(self, device):
        time.sleep(3)  # as a model of some size takes
        self.factor = 2

    def decode_request(self, request):
        return request["x"]

    def predict(self, x):
        time.sleep(x if x > 1 else 0.05)
        return x * self.factor

    def encode_response(self, output):
        return {"y": output}


if __name__ == "__main__":
    litserve.LitServer(
        Model(), accelerator="cpu", api_path="/invocations", healthcheck_path="/ping"
    ).run(port=8080, generate_client_file=False)
