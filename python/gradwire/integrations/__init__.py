# SPDX-FileCopyrightText: The gradwire authors
# SPDX-License-Identifier: Apache-2.0
"""What training libraries need to train over gradwire, one module for each library.

    gradwire.integrations.lightning     strategies by name, with a hook by its spec
    gradwire.integrations.accelerate    Accelerate, and Hugging Face's Trainer, which is built upon it
    gradwire.integrations.torchft       a process group that torchft can make again

Each module needs its library. `import gradwire` imports none of them. docs/clients.md says what has been tried.
"""
