"""Random templates."""
CONTEXT = {}
class Generator:
    def __init__(self, seed): pass
    def template(self): return ""
