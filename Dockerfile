# A server for CPUs: docker build -t blockwright . (docs/operations.md says how to run it)
FROM python:3.11-slim
RUN apt-get update \
 && apt-get install -y --no-install-recommends gcc libc6-dev \
 && rm -rf /var/lib/apt/lists/*
WORKDIR /src
COPY . .
RUN pip install --no-cache-dir "$(grep ^torch== constraints.txt)" --index-url https://download.pytorch.org/whl/cpu \
 && pip install --no-cache-dir -c constraints.txt .
WORKDIR /
RUN useradd --create-home blockwright
USER blockwright
EXPOSE 8000
ENTRYPOINT ["blockwright", "serve", "--host", "0.0.0.0"]
CMD ["/model"]
