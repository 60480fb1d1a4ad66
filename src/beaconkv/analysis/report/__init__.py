"""The report: one HTML file that holds its data, its style and its code, and fetches nothing."""

from .page import render_page

__all__ = ["render_page"]
