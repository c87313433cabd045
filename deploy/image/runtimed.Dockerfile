# The image of runtimed: the static agent and a busybox for the scripts of Runs. build.sh makes the folder that it is built from.
FROM scratch
COPY files /
COPY runtimed LICENSE /
ENV PATH=/bin
USER 65532:65532
EXPOSE 9094
ENTRYPOINT ["/runtimed"]
