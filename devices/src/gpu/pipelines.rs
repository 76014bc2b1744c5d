//! Compiled shaders.

use forebay_numbers::block::BlockType;

use crate::fault::DeviceFault;
use crate::job::Activated;
use crate::shaders::{self, Arithmetic, Shape, Sink};

use super::context::Context;
use super::options::GpuOptions;

/// The shaders of one arithmetic, with the layouts of their bindings.
#[derive(Debug)]
pub(super) struct Pipelines {
    pub(super) products: wgpu::BindGroupLayout,
    pub(super) hidden: wgpu::BindGroupLayout,
    pub(super) parts: wgpu::BindGroupLayout,
    pub(super) attention: wgpu::BindGroupLayout,
    of_products: Vec<Product>,
    of_hidden: Vec<(Activated, wgpu::ComputePipeline)>,
    /// Adds Down's parts.
    pub(super) of_parts: wgpu::ComputePipeline,
    /// With how many groups of elements lanes have of a value.
    of_attention: Vec<(usize, wgpu::ComputePipeline)>,
}

/// A product of panels.
#[derive(Debug)]
struct Product {
    block: BlockType,
    sink: Sink,
    shape: Shape,
    pipeline: wgpu::ComputePipeline,
}

/// A buffer in a shader's binding.
#[derive(Clone, Copy)]
pub(super) enum Binding {
    /// Only read.
    Input,
    /// Read and written.
    Output,
    /// A few numbers, the same for all lanes.
    Params,
}

/// The layout of a shader's bindings, in their order.
pub(super) fn layout(context: &Context, bindings: &[Binding]) -> wgpu::BindGroupLayout {
    let entries: Vec<_> = (0..)
        .zip(bindings)
        .map(|(binding, kind)| wgpu::BindGroupLayoutEntry {
            binding,
            visibility: wgpu::ShaderStages::COMPUTE,
            ty: wgpu::BindingType::Buffer {
                ty: match kind {
                    Binding::Input => wgpu::BufferBindingType::Storage { read_only: true },
                    Binding::Output => wgpu::BufferBindingType::Storage { read_only: false },
                    Binding::Params => wgpu::BufferBindingType::Uniform,
                },
                has_dynamic_offset: false,
                min_binding_size: None,
            },
            count: None,
        })
        .collect();
    let descriptor = wgpu::BindGroupLayoutDescriptor {
        label: None,
        entries: &entries,
    };
    context.device.create_bind_group_layout(&descriptor)
}

/// Compiles the shader `text`.
pub(super) fn compile(
    context: &Context,
    label: &str,
    text: String,
    layout: &wgpu::BindGroupLayout,
) -> Result<wgpu::ComputePipeline, DeviceFault> {
    let compiled = context.guarded(0, |device| {
        let module = device.create_shader_module(wgpu::ShaderModuleDescriptor {
            label: Some(label),
            source: wgpu::ShaderSource::Wgsl(text.into()),
        });
        let layout = device.create_pipeline_layout(&wgpu::PipelineLayoutDescriptor {
            label: None,
            bind_group_layouts: &[Some(layout)],
            immediate_size: 0,
        });
        device.create_compute_pipeline(&wgpu::ComputePipelineDescriptor {
            label: Some(label),
            layout: Some(&layout),
            module: &module,
            entry_point: Some("main"),
            compilation_options: wgpu::PipelineCompilationOptions {
                // Every element is written before it is read.
                zero_initialize_workgroup_memory: false,
                ..Default::default()
            },
            cache: None,
        })
    });
    compiled.map_err(|fault| match fault {
        DeviceFault::BadJob(reason) => DeviceFault::NotOpened {
            adapter: context.name.clone(),
            reason: format!("its driver does not take the shader of {label}: {reason}"),
        },
        other => other,
    })
}

impl Pipelines {
    /// Compiles what weights in the formats and attention of the heads need.
    pub(super) fn new(
        context: &Context,
        options: &GpuOptions,
        arithmetic: Arithmetic,
    ) -> Result<Self, DeviceFault> {
        use Binding::{Input, Output, Params};
        let products = [Params, Input, Input, Output, Input, Output, Input];
        let products = layout(context, &products);
        let hidden = layout(context, &[Params, Input, Output, Output, Input]);
        let parts = layout(context, &[Params, Input, Output, Input]);
        let attention = layout(context, &[Params, Input, Output, Output, Input]);
        let formats = &options.formats;
        let (mut of_products, mut of_hidden) = (Vec::new(), Vec::new());
        for &block in formats {
            for (sink, shape) in [Sink::Rows, Sink::Down]
                .into_iter()
                .flat_map(|sink| sink.shapes().map(|shape| (sink, shape)))
            {
                let Some(text) = shaders::product(block, shape, sink, arithmetic) else {
                    let problem = format!("{block} is not multiplied on devices");
                    return Err(DeviceFault::BadJob(problem));
                };
                let label = format!("{sink:?} of {block} x {}", shape.tokens);
                of_products.push(Product {
                    block,
                    sink,
                    shape,
                    pipeline: compile(context, &label, text, &products)?,
                });
            }
        }
        // Without formats there is no job.
        for activation in Activated::ALL.into_iter().filter(|_| !formats.is_empty()) {
            let text = shaders::hidden(activation, arithmetic);
            let label = format!("{activation:?}");
            of_hidden.push((activation, compile(context, &label, text, &hidden)?));
        }
        let of_parts = compile(context, "parts of Down", shaders::parts(), &parts)?;
        let of_attention = compile_attention(context, options, arithmetic, &attention)?;
        Ok(Self {
            products,
            hidden,
            parts,
            attention,
            of_parts,
            of_attention,
            of_products,
            of_hidden,
        })
    }

    /// The product for a batch of `n_tokens`, and how it is divided.
    ///
    /// # Errors
    /// The format was not compiled.
    pub(super) fn product(
        &self,
        block: BlockType,
        sink: Sink,
        n_tokens: usize,
    ) -> Result<(&wgpu::ComputePipeline, Shape), DeviceFault> {
        let fits = |p: &&Product| p.block == block && p.sink == sink && n_tokens >= p.shape.least;
        match self.of_products.iter().find(fits) {
            Some(product) => Ok((&product.pipeline, product.shape)),
            None => {
                let problem = format!("the device was opened without {block}");
                Err(DeviceFault::BadJob(problem))
            }
        }
    }

    /// What makes Down's input.
    ///
    /// # Errors
    /// It was not compiled.
    pub(super) fn hidden(
        &self,
        activation: Activated,
    ) -> Result<&wgpu::ComputePipeline, DeviceFault> {
        let found = self.of_hidden.iter().find(|(a, _)| *a == activation);
        found.map(|(_, pipeline)| pipeline).ok_or_else(|| {
            DeviceFault::BadJob(format!("the device was opened without {activation:?}"))
        })
    }

    /// Attention with such values.
    ///
    /// # Errors
    /// It was not compiled.
    pub(super) fn attention(
        &self,
        value_dim: usize,
    ) -> Result<&wgpu::ComputePipeline, DeviceFault> {
        let quads = shaders::quads(value_dim);
        let found = self.of_attention.iter().find(|(n, _)| *n == quads);
        found.map(|(_, pipeline)| pipeline).ok_or_else(|| {
            let problem = format!("the device was opened without values of {value_dim} elements");
            DeviceFault::BadJob(problem)
        })
    }
}

/// One shader for all heads whose values need as many groups of elements.
fn compile_attention(
    context: &Context,
    options: &GpuOptions,
    arithmetic: Arithmetic,
    layout: &wgpu::BindGroupLayout,
) -> Result<Vec<(usize, wgpu::ComputePipeline)>, DeviceFault> {
    let mut compiled: Vec<(usize, wgpu::ComputePipeline)> = Vec::new();
    for shape in &options.heads {
        if !shape.is_possible() {
            let problem = format!("{shape:?} do not attend on devices");
            return Err(DeviceFault::BadJob(problem));
        }
        let quads = shaders::quads(shape.value_dim);
        if compiled.iter().all(|(n, _)| *n != quads) {
            let (label, text) = (
                format!("attention x {quads}"),
                shaders::attention(quads, arithmetic),
            );
            compiled.push((quads, compile(context, &label, text, layout)?));
        }
    }
    Ok(compiled)
}
