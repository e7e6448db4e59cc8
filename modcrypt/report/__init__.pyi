"""The public names of the package, and the modules that define them."""

from modcrypt.report.html import render_html as render_html
