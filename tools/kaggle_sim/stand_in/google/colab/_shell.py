"The class by which a notebook is known to run on Colab."

from ipykernel.zmqshell import ZMQInteractiveShell


class Shell(ZMQInteractiveShell):
    "IPython's own shell, by Colab's name."
