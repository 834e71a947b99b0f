"""All that is known of a store's use as one HTML page, which asks nobody for anything.

facts (what is shown, as plain data) → page (data, style and scripts in one file); report.js draws
"""
