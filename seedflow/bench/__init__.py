"""What `seedflow bench` measures: parts of seedflow beside what else does the same.

Speed is a ratio here: contenders take turns in one process, so that a busy machine slows all of them. The
package ships with seedflow, as a claim about speed is worth what it reaches on the reader's machine.
"""
