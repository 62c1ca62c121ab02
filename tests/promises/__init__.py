"""The promises of the five documents, and the tests that show that each one is kept.

`rows.md` has the rows. A test anywhere in the suite carries rows with `@pytest.mark.promise("A12", "A13")`.
Promises that no other test shows have tests here, in a module for each document. `make promises` runs every
test that carries a row and prints the table. `python -m tests.promises` prints it without running a test. A
row without a test is shown as open, and must not be hidden.
"""
