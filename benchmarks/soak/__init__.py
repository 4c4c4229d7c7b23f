"""A real viewer is sent real runs: does it show the tree that was sent?"""
