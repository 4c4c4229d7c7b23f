"""`hookline init`."""

from hookline.cli.init._init import init as init
