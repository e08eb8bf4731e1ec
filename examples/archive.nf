#!/usr/bin/env nextflow
// An archive in Nextflow: one task per share of the scans, on whatever executor your configuration names.
//
//   nextflow run examples/archive.nf --archive /shared/archive --model /shared/mymodel --out /shared/results --shards 32
//
// Finished cases are skipped when a task is repeated, so a retry costs what was left of its share. Results are
// written to shared storage by the command itself.

params.archive = null
params.model = null
params.out = null
params.shards = 8

process SEGMENT {
    tag "${shard} of ${params.shards}"
    cpus 4
    memory '8 GB'
    time '12h'
    errorStrategy 'retry'
    maxRetries 2

    input:
    val shard

    output:
    val shard

    script:
    """
    export OMP_NUM_THREADS=${task.cpus}
    conseg segment '${params.archive}' -m '${params.model}' -o '${params.out}' --statistics \\
        --shard ${shard}/${params.shards} --quiet
    """
}

workflow {
    if (!params.archive || !params.model || !params.out) {
        error "Name --archive, --model and --out, as absolute paths on shared storage."
    }
    SEGMENT(Channel.of(1..params.shards))
}
