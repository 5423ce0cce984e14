from clients.errors import *
