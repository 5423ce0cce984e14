from clients.base import *
