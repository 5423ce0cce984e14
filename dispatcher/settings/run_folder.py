"""Names in RUN_DIR, for the supervisor and the web workers."""

SUPERVISOR = "supervisor.json"  # the status of the programs, which the supervisor publishes
READINESS = "readiness.json"  # that of the models, which a web worker publishes
INSTANCES = "instances"  # the folder that the instances of models share
ENGINES = "engines"  # in it: their engines
WANTED = "wanted"  # a file for each model that Triton is to load when it starts
FAILING = "failing"  # a file for each model that has just failed a request
JOBS = "jobs"  # the folder of asynchronous requests, where JOBS_DIR does not name one
USED = "used"  # a file for each model, whose time is that of its last request
# A link to each folder of MODEL_REPOSITORY, or for one in S3 a folder of links to its models.
MODELS = "models"
# Links to the deleted folders of models. Names that begin like this one are on their way into the
# repository or out of it.
ASIDE = "aside"
