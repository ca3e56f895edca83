"""What every operator means: float64 NumPy, one module per operator, every named step returned.

Written from the formulas, slow and plain on purpose, and importing nothing but NumPy: these are what the kernels are
judged by. Inputs may have any floating dtype and are widened exactly; results are float64, in the order of the steps.
"""
