# For editors and type checkers in a checkout; the wheel has the modules themselves.
