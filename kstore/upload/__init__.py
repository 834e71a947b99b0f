"""How the blobs of a commit come into the store. Each step of an attempt takes what the one before it has made.

reliance (what the store has) → plan (what is uploaded) → shortened (the manifest) → uploader (stores both) → named (the
packs that the ref names).
"""
