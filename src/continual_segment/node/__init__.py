"""Node: a DICOM node that receives CT series, segments them and sends the results on.

receive -> queue -> work -> send: every step is on the disk before the next begins, so a node that is killed
resumes where it was. `dicomweb` is the other direction: series are pulled from an archive. Nothing else in
the package opens a network connection.
"""
