from clients.testing import *
