//! Compiled shaders.

use forebay_numbers::block::BlockType;

use crate::fault::DeviceFault;
use crate::shaders::{self, Arithmetic};

use super::context::Context;

/// Tokens of a workgroup, the widest first; a batch takes the widest of which it fills more than half.
const WIDTHS: [usize; 2] = [8, 1];

/// The products of one arithmetic.
#[derive(Debug)]
pub(super) struct Pipelines {
    pub(super) layout: wgpu::BindGroupLayout,
    products: Vec<(BlockType, usize, wgpu::ComputePipeline)>,
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
    /// Compiles the products of `formats`.
    pub(super) fn new(
        context: &Context,
        formats: &[BlockType],
        arithmetic: Arithmetic,
    ) -> Result<Self, DeviceFault> {
        use Binding::{Input, Output, Params};
        let layout = layout(context, &[Input, Input, Output, Params]);
        let mut products = Vec::new();
        for &block in formats {
            for width in WIDTHS {
                let Some(text) = shaders::product(block, width, arithmetic) else {
                    let problem = format!("{block} is not multiplied on devices");
                    return Err(DeviceFault::BadJob(problem));
                };
                let label = format!("{block} x {width}");
                products.push((block, width, compile(context, &label, text, &layout)?));
            }
        }
        Ok(Self { layout, products })
    }

    /// The product for a batch of `n_tokens`, and its tokens per workgroup; `None` if the format was not compiled.
    pub(super) fn product(
        &self,
        block: BlockType,
        n_tokens: usize,
    ) -> Option<(&wgpu::ComputePipeline, usize)> {
        let fits = |width: usize| width == 1 || 2 * n_tokens > width;
        let mut products = self.products.iter();
        let (_, width, pipeline) =
            products.find(|(format, width, _)| *format == block && fits(*width))?;
        Some((pipeline, *width))
    }
}
