"""Statistics of a store: what restores and commits took, what is stored, and whose bytes they are.

totals (what restores add up to; pure) → pages (where that is kept) ← record (who adds to it)
owners (which blobs are whose) → accounts (whose bytes they are) → space (what is reported) → overview → prometheus
"""
