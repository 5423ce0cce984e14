-- What wrk sends to the model that does nothing.
wrk.method = "POST"
wrk.body = '{"modelname": "nothing", "payload": {"number": [1]}}'
wrk.headers["Content-Type"] = "application/json"
