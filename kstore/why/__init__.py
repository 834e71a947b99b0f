"""Why something was compiled although something was restored: fresh graphs and Triton kernels, compared with those that
were there.
"""
