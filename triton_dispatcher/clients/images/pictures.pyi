from clients.images.pictures import *
