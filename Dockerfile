# archlab with the CPU build of torch. docs/install.md shows how to run the demo and the laboratory.
FROM python:3.13-slim

WORKDIR /src
RUN pip install --no-cache-dir torch==2.13.0 --index-url https://download.pytorch.org/whl/cpu
COPY pyproject.toml constraints.txt README.md LICENSE CHANGELOG.md CITATION.cff ./
COPY src src
COPY docs docs
RUN pip install --no-cache-dir -c constraints.txt .

RUN useradd --create-home archlab
USER archlab
WORKDIR /home/archlab
EXPOSE 8765

ENTRYPOINT ["archlab"]
CMD ["demo"]
