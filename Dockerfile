# A server for CPUs: docker build -t blockwright . (docs/operations.md says how to run it)
FROM python:3.11-slim AS build
RUN apt-get update \
 && apt-get install -y --no-install-recommends gcc libc6-dev \
 && rm -rf /var/lib/apt/lists/*
WORKDIR /src
COPY . .
RUN pip wheel --no-cache-dir --no-deps -w /dist .

FROM python:3.11-slim
WORKDIR /src
RUN --mount=type=bind,target=/src --mount=type=bind,from=build,source=/dist,target=/dist \
    pip install --no-cache-dir "$(grep ^torch== constraints.txt)" --index-url https://download.pytorch.org/whl/cpu \
 && pip install --no-cache-dir -c constraints.txt /dist/*.whl
WORKDIR /
RUN useradd --create-home blockwright
USER blockwright
EXPOSE 8000
ENTRYPOINT ["blockwright", "serve", "--host", "0.0.0.0"]
CMD ["/model"]
