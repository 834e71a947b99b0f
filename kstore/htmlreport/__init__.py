"""Everything that is known about a store's use as one HTML page, which loads nothing from elsewhere.

facts (what is shown, as plain data) → page (data, style and scripts in one file); report.js draws
"""
