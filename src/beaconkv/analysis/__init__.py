"""Analysis of a model: which entries its queries attend to, and what an eviction method would have lost.

trace      the queries, keys and values of one text, on disk
revisiting which queries look far back (thought revisiting tokens), geometry: whether they resemble each other
replay     any policy over a trace, against what later queries wanted, and against an oracle
report     an HTML page
"""
