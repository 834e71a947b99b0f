"""Looks into what is stored: what each artifact is, what its kernels are called, what differs between two caches.

Pickled entries are never unpickled here, because that runs code.
"""
