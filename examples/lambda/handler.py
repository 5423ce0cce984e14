"""The dispatcher as a plain handler of AWS Lambda, behind API Gateway or a load balancer."""

from apig_wsgi import make_lambda_handler

from dispatcher.wsgi import build_alone

# Made once, when Lambda starts this process; TRITON_URL says where the models are.
handler = make_lambda_handler(build_alone(), binary_support=True)
