"""Looking at a model: what its queries look back at, and what an eviction method would have lost.

trace      one text's queries, keys and values on disk
revisiting which queries look far back (thought revisiting tokens), geometry: whether they resemble each other
replay     any policy over a trace, against what later queries wanted, and against an oracle
report     a page for people
"""
