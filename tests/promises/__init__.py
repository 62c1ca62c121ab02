"""What the five documents promise, row by row, and who shows that it is kept.

`rows.md` has the rows. A test anywhere in the suite keeps some of them by
`@pytest.mark.promise("A12", "A13")`; what no test of a part shows stands here, in a module for each
document. `make promises` runs every test that carries a row and prints the table; `python -m
tests.promises` prints it without running anything. A row without a test is shown as open: nothing
here may hide one.
"""
