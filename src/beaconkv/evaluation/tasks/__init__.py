"""Tasks that can be evaluated: the bundled reasoning tasks, and files of problems and answers."""
