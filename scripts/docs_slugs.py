"""Anchors of headings as GitHub makes them, so that a link is right on both."""
import re


def slugify(text, separator):
    return re.sub(r"[^\w\- ]", "", re.sub(r"<[^>]+>", "", text).strip().lower()).replace(" ", separator)
