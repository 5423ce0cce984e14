"""The error while a model is made; its text is shown to the user as it is."""


class WeightsError(Exception):
    """A model could not be made: a source gave nothing or something else, or it has no mapping."""
